"""Other people's layers: right programs are silent, each left-out collective is found."""
