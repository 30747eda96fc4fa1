"""An activation of stamm in a model of transformers: put in, saved with it, trained, taken out."""
