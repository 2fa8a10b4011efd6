"""A private model that is trained, not projected: pre-trained on public text, then private at ε = 8 and ε = 4."""
