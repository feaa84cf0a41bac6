"""From rollouts to scores: reward inputs, reward functions, scoring, difficulty."""
