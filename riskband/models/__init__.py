"""A model's loss on examples, and layers for models: what every client needs. It needs torch, and no Flower."""
