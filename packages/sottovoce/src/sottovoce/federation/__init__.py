"""Real devices: the same round, its users trained where their text lies. Flower carries the messages."""
