"""dpjax.data"""
