"""The Dagster side: one component per YAML, its assets, checks, schedule and sensor."""
