"""Any of the models on random data, to measure speed without reading any."""
