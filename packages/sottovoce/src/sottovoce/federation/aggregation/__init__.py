"""How the answers of devices become one sum."""
