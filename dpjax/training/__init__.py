"""dpjax.training"""
