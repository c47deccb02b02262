"""The same passes over tables larger than memory, and over many machines."""
