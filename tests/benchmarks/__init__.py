"""`make bench`: what the package costs, side by side with what people would use instead."""
