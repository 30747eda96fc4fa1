"""The conformance board: accuracy of activations in other libraries and in every emitted target."""
