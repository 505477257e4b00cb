"""dpjax.tuning"""
