"""What every room uses: files that appear whole, tables, JSON, digests, progress, worker processes."""
