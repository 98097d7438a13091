"""Building ahead of time: a script's steps are made without the cluster that will run them."""
