"""The pinned bytes of the Ubuntu IRC logs: path, size and SHA-256 of every file."""

from __future__ import annotations

IRC_COMMIT = "82ed04f9627a45d0d6f2ec3c8683c88eb408a0d5"

IRC_FILES: tuple[tuple[str, int, str], ...] = (
    ("dev/2004-11-15_03.annotation.txt", 3301, "7e287fda46db33cec80268f521733b5d2f59faf20f079c15f26a4d018d4b9abe"),
    ("dev/2004-11-15_03.ascii.txt", 77237, "2488371b4370a497d30c0b3a38415e30a278cd0bcf41df77439fc7859cead07a"),
    ("dev/2005-06-27_12.annotation.txt", 3402, "61df6df0cd46dd76f14f9a9b1a49be3e55c8a46a39d6e9c1cc65179d11e361a6"),
    ("dev/2005-06-27_12.ascii.txt", 80798, "07a04a54bf423367a1174b790d1a50a8809de9703d57c193c625918e165074fb"),
    ("dev/2005-08-08_01.annotation.txt", 3402, "ad9c200197e9ec021d4e2693383dd052e7cf3ff243fcf24ddf568954247c6676"),
    ("dev/2005-08-08_01.ascii.txt", 87440, "119cf33d07dfe2efe70ebe4fee26233766eb96117f7ff8c2916e172747216e42"),
    ("dev/2008-12-11_11.annotation.txt", 3480, "fdafad5b5dd0e2ea5af77b06487ffe12ceacbbef7761205699a13ca5ca4521ca"),
    ("dev/2008-12-11_11.ascii.txt", 96579, "6d8a7645c35fc3e5e4d0672130f53f3e63debaf21885d257af7291bdf57ac86d"),
    ("dev/2009-02-23_10.annotation.txt", 3466, "f5b887122d0f8818592d9e6b331e2ec461bc40915732eccbfeaa80b12a562f00"),
    ("dev/2009-02-23_10.ascii.txt", 92813, "aa56934ef4c181ec1d43c288c340f5052efa4a526aba8c07499ca51eee8957c9"),
    ("dev/2009-03-03_10.annotation.txt", 3372, "0e52a69a65aa7dbe6c5eb4439bf9b57ef0506a1ebfc953ce33ee8691e100a9b3"),
    ("dev/2009-03-03_10.ascii.txt", 91902, "988bf117fda251a31642cc4b33a96bd1c12faa2f4336dd20a89e6d5b52dce618"),
    ("dev/2009-10-01_17.annotation.txt", 3442, "c9e168245fee9b62bf7c1eeb11530dc128714bc7888c3b5f40bdfa9ffbc5f05c"),
    ("dev/2009-10-01_17.ascii.txt", 97673, "27e0cb33cc89ab5558e99a26ebf76e0a197bccc5931ac296575fe0666c977df0"),
    ("dev/2011-05-29_19.annotation.txt", 3313, "84f5045d89c4abe35e6590144e1d89a67cb9fba4bb0dce3c0257068a66c002bc"),
    ("dev/2011-05-29_19.ascii.txt", 100046, "183861d17db9977acffdc8455b2d30ea83b7ca3fab425df63c6326e6655f71f1"),
    ("dev/2011-11-13_02.annotation.txt", 3325, "2cbeb4a993af2fc64e209863db1482d21c68ece014fe09afe042734f325946e0"),
    ("dev/2011-11-13_02.ascii.txt", 101736, "f3927a37daaa6fed49c0d6700e541156315e14745564df55ddad0f566ce86928"),
    ("dev/2016-12-19_20.annotation.txt", 3350, "2830fba191c1a9ac29c554636cc915608750b9f22b8a4b741b18d526730e0d56"),
    ("dev/2016-12-19_20.ascii.txt", 100027, "af14f8399756d289d005a2d12d93081ef2f2b0752742aadedf633f887fb83ce9"),
    ("test/2005-07-06_14.annotation.txt", 6069, "51c990bee44f611314ce6254d333d3acb4ab23bcadaa9c30a96d3dc1e534bd9a"),
    ("test/2005-07-06_14.ascii.txt", 102641, "5b1250607a64c9cee51eff265391a687bb3c08d2dd3507d5732eeedd42c530b6"),
    ("test/2007-01-11_12.annotation.txt", 6235, "366e4778bb2a097438ed777a68ce15d5ddb70441a872ac79d859e1492db22ad1"),
    ("test/2007-01-11_12.ascii.txt", 112857, "796f21d4ed0fcbac4b7136ffa09c7cf63e0c87b9876421933758578795ed6d66"),
    ("test/2007-12-01_03.annotation.txt", 6185, "b8572d5d70485689c8c3fd95a235ae8a357c6a6aa51e29c8f846c8fa07ce666d"),
    ("test/2007-12-01_03.ascii.txt", 112356, "4bde0b4d543eaa8984321d92d0d7ef330604e247bae27c13fb66478e7109c126"),
    ("test/2008-07-14_18.annotation.txt", 6329, "ade476521166483ebb71c8177a9c181ac8ff60fec9e58f57e45e1fb2f559f3a3"),
    ("test/2008-07-14_18.ascii.txt", 113399, "fc2e577a67c299637aed4f700dbd003fe84dc24ad3e7060f8204d6dd461db0f8"),
    ("test/2010-08-17_18.annotation.txt", 6257, "7c2213ab5a74214ece883542d129aa72b56cc13e59f04ad86d4e6a686afa5b00"),
    ("test/2010-08-17_18.ascii.txt", 138116, "63aaad8d7828d0a3f603eaa35e9e29228270b6e80f572cd4ef640154caef1aad"),
    ("test/2013-09-01_02.annotation.txt", 6376, "d5f71682c95aedae5389630a380091fdd26c53a4a8421dc4918c8fb784bc28b5"),
    ("test/2013-09-01_02.ascii.txt", 123663, "eb8dc26ea44fa5d3d7d8e5f643d7cb3490f0eda3cc9109cf34e4de840c4dc935"),
    ("test/2014-06-18_13.annotation.txt", 6203, "195aee28edac095129e1b34bb8020c7ea3add9965567b638a832961c03baa054"),
    ("test/2014-06-18_13.ascii.txt", 120059, "7d605bb50f17cb98975f52b7045a2b56452a84676a8896bb13512151629dbce8"),
    ("test/2015-03-18_05.annotation.txt", 6201, "11db2a93f8259ec61f5fc9c3667088efdd2dd9b72a5dc3848a3e75935cf26efc"),
    ("test/2015-03-18_05.ascii.txt", 120729, "f6b2f97f05dfa6ac5100c414a5a6e735f6146aedf20f45a5eb26d991cfb731e3"),
    ("test/2016-02-22_17.annotation.txt", 6215, "b57faf26343af81280f94fb0db4a36beee58248d6200279bb1d4cd2603779428"),
    ("test/2016-02-22_17.ascii.txt", 115837, "1a819b2679738c0571dbff5c9df6c931afe82b534710534ef4530678c1d2e26a"),
    ("test/2016-06-08_07.annotation.txt", 6129, "97c5177146e19c2ca5f98118a7dec1c79f6baf4ddd8775756d6338607e02fed5"),
    ("test/2016-06-08_07.ascii.txt", 121762, "02f39fb5b9e5a934bce755a29aedf233cd7bcfca1ca216fb7acd568a34541ac4"),
)
"""(path below ``data``, bytes, SHA-256); of each chat first the reply links, then the log."""
