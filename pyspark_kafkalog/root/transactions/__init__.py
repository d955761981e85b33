"""Open transactions of a root, ending them, and `__transaction_state`."""
