"""What answers, bands and certificates share as Python objects: how they are shown, compared and put into tables."""
