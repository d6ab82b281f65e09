"""What a layer's attention is, and latents that keys and values are made of."""
