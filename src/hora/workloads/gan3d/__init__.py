"""3DGAN: a generator that learns what particle showers in a calorimeter look like, against a discriminator that tells
them from simulated ones, as CERN openlab's and the ISC student cluster competition had it."""
