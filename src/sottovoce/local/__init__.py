"""What a device does with the text of its user."""
