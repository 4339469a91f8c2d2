"""Readers of the data sets' own file formats, without TensorFlow: what several workloads read lies here."""
