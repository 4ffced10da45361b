"""Where experience is kept until an update has used it."""
