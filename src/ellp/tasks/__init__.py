"""What a model is measured on."""
