"""Check an edited model by numbers and by gradients."""
