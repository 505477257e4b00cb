"""dpjax.accounting"""
