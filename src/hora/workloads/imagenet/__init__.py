"""ImageNet: ResNets on JPEG pictures, as the reference study and Goyal et al. trained them."""
