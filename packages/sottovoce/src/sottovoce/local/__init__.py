"""What a device computes from the text of its user."""
