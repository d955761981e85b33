"""Closed segments as maintenance sees them, and replacing them."""
