"""The field contract: every raw row is accepted whole or rejected with a reason."""
