"""Which prompts are taken into the training set, and the files in which trainers read them."""
