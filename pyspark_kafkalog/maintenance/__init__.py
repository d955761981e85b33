"""What keeps a log directory healthy while readers and writers go on: retention, cleaner, merge, verification."""
