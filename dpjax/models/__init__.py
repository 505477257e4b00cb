"""dpjax.models"""
