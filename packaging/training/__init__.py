"""Makes the embedded model: a dense chat model split into experts and distilled back into shape."""
