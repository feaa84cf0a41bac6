"""The kinds of media, and how a row in verl's schema names them."""

COLUMN_OF = {"image": "images", "video": "videos", "audio": "audios"}
"""The column that holds the media of each modality."""
MODALITIES = tuple(COLUMN_OF)
MEDIA_COLUMNS = tuple(COLUMN_OF.values())
PLACEHOLDERS = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
"""What stands in a text for a medium of the row's column."""
