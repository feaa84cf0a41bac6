"""The batch type, collating rows into it, and the shards in which it is stored."""
