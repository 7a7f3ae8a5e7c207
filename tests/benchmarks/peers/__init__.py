"""What our figures are compared with, each driven as its own documentation says."""
