"""ImageNet: ResNets on JPEG images, as the reference study and Goyal et al. trained them."""
