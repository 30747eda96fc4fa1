"""A trained decoder as a folder that other libraries load, proved equal before it gets its name."""
