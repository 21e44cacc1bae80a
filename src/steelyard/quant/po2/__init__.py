"""4-bit microscaled quantisation in which every small group picks the better of several grids ("PO2 grids").

Microscaled formats such as NVFP4 and MXFP4 put all groups on one fixed floating-point grid. Here a group of 16 chooses
among two or more grids and says which in a bit of its scale that is free anyway, so that the error falls at the same
4.5 bits a weight. The gain is a gain of small groups: for very large ones a single good grid does as well.
"""
