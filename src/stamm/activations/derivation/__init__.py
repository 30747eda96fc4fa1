"""From a Spec to its function, derivatives and parameter gradients, in forms that keep digits."""
