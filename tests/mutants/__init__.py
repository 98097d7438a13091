"""Each collective and conversion of `lockstep.parallel` left out in turn: does a check find it?"""
