"""Text to users: reading corpora, tokens, vocabularies, the user store, the synthetic population."""
