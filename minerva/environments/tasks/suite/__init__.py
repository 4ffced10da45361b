"""Tasks of the dm_control suite, with its models."""
