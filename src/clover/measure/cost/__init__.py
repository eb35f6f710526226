"""`clover cost`: what τ a draft must reach here, and after how many tokens its training has paid for itself."""
