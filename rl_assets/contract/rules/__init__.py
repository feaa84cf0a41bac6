"""What a row must be: one table of codes, and the rules that find them."""
