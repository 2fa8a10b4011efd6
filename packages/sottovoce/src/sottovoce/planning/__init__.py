"""What a private training costs, before paying for it."""
