"""Images, videos and audio clips: where they are, how they are decoded, how many tokens they take."""
