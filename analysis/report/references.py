"""Authors of the papers that BibTeX entries cite, by arXiv number, from the citations that the papers' own
pages and repositories give."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 10
"""Authors that are named; where a paper has more, `others` stands for the rest."""
AUTHORS: Mapping[str, str] = {
    "1506.02438": "John Schulman, Philipp Moritz, Sergey Levine, Michael Jordan, Pieter Abbeel",
    "1707.06347": "John Schulman, Filip Wolski, Prafulla Dhariwal, Alec Radford, Oleg Klimov",
    "1910.03771": "Thomas Wolf, Lysandre Debut, Victor Sanh, Julien Chaumond, Clement Delangue, Anthony Moi, "
    "Pierric Cistac, Tim Rault, Rémi Louf, Morgan Funtowicz, others",
    "1912.01703": "Adam Paszke, Sam Gross, Francisco Massa, Adam Lerer, James Bradbury, Gregory Chanan, "
    "Trevor Killeen, Zeming Lin, Natalia Gimelshein, Luca Antiga, others",
    "2305.18290": "Rafael Rafailov, Archit Sharma, Eric Mitchell, Stefano Ermon, Christopher D. Manning, "
    "Chelsea Finn",
    "2306.13649": "Rishabh Agarwal, Nino Vieillard, Yongchao Zhou, Piotr Stanczyk, Sabela Ramos, "
    "Matthieu Geist, Olivier Bachem",
    "2308.01825": "Zheng Yuan, Hongyi Yuan, Chengpeng Li, Guanting Dong, Keming Lu, Chuanqi Tan, Chang Zhou, "
    "Jingren Zhou",
    "2309.06180": "Woosuk Kwon, Zhuohan Li, Siyuan Zhuang, Ying Sheng, Lianmin Zheng, Cody Hao Yu, "
    "Joseph E. Gonzalez, Hao Zhang, Ion Stoica",
    "2310.10505": "Ziniu Li, Tian Xu, Yushun Zhang, Zhihang Lin, Yang Yu, Ruoyu Sun, Zhi-Quan Luo",
    "2310.12036": "Mohammad Gheshlaghi Azar, Mark Rowland, Bilal Piot, Daniel Guo, Daniele Calandriello, "
    "Michal Valko, Rémi Munos",
    "2402.01306": "Kawin Ethayarajh, Winnie Xu, Niklas Muennighoff, Dan Jurafsky, Douwe Kiela",
    "2402.03300": "Zhihong Shao, Peiyi Wang, Qihao Zhu, Runxin Xu, Junxiao Song, Xiao Bi, Haowei Zhang, "
    "Mingchuan Zhang, Y. K. Li, Y. Wu, others",
    "2402.14740": "Arash Ahmadian, Chris Cremer, Matthias Gallé, Marzieh Fadaee, Julia Kreutzer, "
    "Olivier Pietquin, Ahmet Üstün, Sara Hooker",
    "2403.07691": "Jiwoo Hong, Noah Lee, James Thorne",
    "2404.16767": "Zhaolin Gao, Jonathan D. Chang, Wenhao Zhan, Owen Oertell, Gokul Swamy, Kianté Brantley, "
    "Thorsten Joachims, J. Andrew Bagnell, Jason D. Lee, Wen Sun",
    "2405.00675": "Yue Wu, Zhiqing Sun, Huizhuo Yuan, Kaixuan Ji, Yiming Yang, Quanquan Gu",
    "2405.14734": "Yu Meng, Mengzhou Xia, Danqi Chen",
    "2405.19107": "Pierre Harvey Richemond, Yunhao Tang, Daniel Guo, Daniele Calandriello, "
    "Mohammad Gheshlaghi Azar, Rafael Rafailov, Bernardo Avila Pires, Eugene Tarassov, Lucas Spangher, "
    "Will Ellsworth, others",
    "2501.03262": "Jian Hu, Jason Klein Liu, Haotian Xu, Wei Shen",
    "2501.12599": "{Kimi Team}, Angang Du, Bofei Gao, Bowei Xing, Changjiu Jiang, Cheng Chen, Cheng Li, "
    "Chenjun Xiao, Chenzhuang Du, Chonghua Liao, others",
    "2503.14286": "Nicolas Le Roux, Marc G. Bellemare, Jonathan Lebensold, Arnaud Bergeron, Joshua Greaves, "
    "Alex Fréchette, Carolyne Pelletier, Eric Thibodeau-Laufer, Sándor Toth, Sam Work",
    "2503.14476": "Qiying Yu, Zheng Zhang, Ruofei Zhu, Yufeng Yuan, Xiaochen Zuo, Yu Yue, Tiantian Fan, "
    "Gaohong Liu, Lingjun Liu, Xin Liu, others",
    "2503.19595": "Yunhao Tang, Kunhao Zheng, Gabriel Synnaeve, Rémi Munos",
    "2503.20783": "Zichen Liu, Changyu Chen, Wenjun Li, Penghui Qi, Tianyu Pang, Chao Du, Wee Sun Lee, "
    "Min Lin",
    "2504.02546": "Xiangxiang Chu, Hailang Huang, Xiao Zhang, Fei Wei, Yong Wang",
    "2504.05118": "Yu Yue, Yufeng Yuan, Qiying Yu, Xiaochen Zuo, Ruofei Zhu, Wenyuan Xu, Jiaze Chen, "
    "Chengyi Wang, Tiantian Fan, Zhengyin Du, others",
    "2504.19599": "Kaichen Zhang, Yuzhong Hong, Junwei Bao, Hongfei Jiang, Yang Song, Dingqian Hong, "
    "Hui Xiong",
    "2505.10978": "Lang Feng, Zhenghai Xue, Tingcong Liu, Bo An",
    "2505.20686": "Kianté Brantley, Mingyu Chen, Zhaolin Gao, Jason D. Lee, Wen Sun, Wenhao Zhan, "
    "Xuezhou Zhang",
    "2505.22617": "Ganqu Cui, Yuchen Zhang, Jiacheng Chen, Lifan Yuan, Zhi Wang, Yuxin Zuo, Haozhan Li, "
    "Yuchen Fan, Huayu Chen, Weize Chen, others",
    "2505.23585": "Yaru Hao, Li Dong, Xun Wu, Shaohan Huang, Zewen Chi, Furu Wei",
    "2506.01939": "Shenzhi Wang, Le Yu, Chang Gao, Chujie Zheng, Shixuan Liu, Rui Lu, Kai Dang, "
    "Xionghui Chen, Jianxin Yang, Zhenru Zhang, others",
    "2506.02864": "Changyi Xiao, Mengdi Zhang, Yixin Cao",
    "2506.13585": "{MiniMax}, others",
    "2507.18071": "Chujie Zheng, Shixuan Liu, Mingze Li, Xiong-Hui Chen, Bowen Yu, Chang Gao, Kai Dang, "
    "Yuqiong Liu, Rui Men, An Yang, others",
    "2507.20673": "Yuzhong Zhao, Yue Liu, Junpeng Liu, Jingye Chen, Xun Wu, Yaru Hao, Tengchao Lv, "
    "Shaohan Huang, Lei Cui, Qixiang Ye, others",
    "2508.08221": "Zihe Liu, Jiashun Liu, Yancheng He, Weixun Wang, Jiaheng Liu, Ling Pan, Xinyu Hu, "
    "Shaopan Xiong, Ju Huang, Jian Hu, others",
    "2508.10751": "Zhipeng Chen, Xiaobo Qin, Youbin Wu, Yue Ling, Qinghao Ye, Wayne Xin Zhao, Guang Shi",
    "2508.11408": "Wenhao Zhang, Yuexiang Xie, Yuchang Sun, Yanxi Chen, Guoyin Wang, Yaliang Li, Bolin Ding, "
    "Jingren Zhou",
    "2509.13232": "Zhongwen Xu, Zihan Ding",
    "2509.15207": "Xuekai Zhu, Daixuan Cheng, Dinghuai Zhang, Hengli Li, Kaiyan Zhang, Che Jiang, "
    "Youbang Sun, Ermo Hua, Yuxin Zuo, Xingtai Lv, others",
    "2509.18851": "Gongrui Nan, Siye Chen, Jing Huang, Mengyu Lu, Dexun Wang, Chunmei Xie, Weiqi Xiong, "
    "Xianzhou Zeng, Qixuan Zhou, Yadong Li, others",
    "2510.01161": "Haizhong Zheng, Jiawei Zhao, Beidi Chen",
    "2510.13786": "Devvrit Khatri, Lovish Madaan, Rishabh Tiwari, Rachit Bansal, Sai Surya Duvvuri, "
    "Manzil Zaheer, Inderjit S. Dhillon, David Brandfonbrener, Rishabh Agarwal",
    "2511.20347": "Chang Gao, Chujie Zheng, Xiong-Hui Chen, Kai Dang, Shixuan Liu, Bowen Yu, An Yang, "
    "Shuai Bai, Jingren Zhou, Junyang Lin",
    "2601.05242": "Shih-Yang Liu, Xin Dong, Ximing Lu, Shizhe Diao, Peter Belcak, Mingjie Liu, "
    "Min-Hung Chen, Hongxu Yin, Yu-Chiang Frank Wang, Kwang-Ting Cheng, others",
    "2601.19897": "Idan Shenfeld, Mehul Damani, Jonas Hübotter, Pulkit Agrawal",
    "2601.20802": "Jonas Hübotter, Frederike Lübeck, Lejs Behric, Anton Baumann, Marco Bagatella, "
    "Daniel Marta, Ido Hakimi, Idan Shenfeld, Thomas Kleine Buening, Carlos Guestrin, others",
    "2601.22582": "Youngeun Kim",
    "2602.02710": "Fahim Tajwar, Guanning Zeng, Yueer Zhou, Yuda Song, Daman Arora, Yiding Jiang, "
    "Jeff Schneider, Ruslan Salakhutdinov, Haiwen Feng, Andrea Zanette",
    "2602.04879": "Penghui Qi, Xiangxin Zhou, Zichen Liu, Tianyu Pang, Chao Du, Min Lin, Wee Sun Lee",
    "2602.05261": "Fanfan Liu, Youyang Yin, Peng Shi, Siqi Yang, Zhixiong Zeng, Haibo Qiu",
    "2602.10693": "Guobin Shen, Chenxiao Zhao, Xiang Cheng, Lei Huang, Xing Yu",
    "2602.12275": "Tianzhu Ye, Li Dong, Xun Wu, Shaohan Huang, Furu Wei",
    "2603.18756": "Gabriele Carrino, Andrea Sassella, Nicolo Brunello, Federico Toschi, Mark James Carman",
    "2603.19835": "Chiyu Ma, Shuo Yang, Kexin Huang, Jinda Lu, Haoming Meng, Shangshang Wang, Bolin Ding, "
    "Soroush Vosoughi, Guoyin Wang, Jingren Zhou",
    "2606.06475": "Mykyta Ielanskyi, Kajetan Schweighofer, Lukas Aichberger, Sepp Hochreiter",
    "2606.10768": "Xukun Zhu, Hang Yu, Peng Di, Linchao Zhu",
    "2606.14691": "Jiayue Cao, Zhicong Lu, Xuehan Sun, Wei Jia, Hongling Zheng, Changyuan Tian, Zichuan Lin, "
    "Wenqian Lv, Nayu Liu",
    "2606.22305": "Zicheng Xu, Ruixuan Zhang, Yu-Neng Chuang, Xiuyi Lou, Hoang Anh Duy Le, Oren Gal, "
    "Alexander S. Szalay, Zhaozhuo Xu, Guanchu Wang, Vladimir Braverman",
}
"""Authors in their order, after a comma each; a group in braces."""
TITLES: Mapping[str, str] = {
    "1506.02438": "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    "2306.13649": "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes",
    "2510.13786": "The Art of Scaling Reinforcement Learning Compute for LLMs",
}
"""Titles of papers that an algorithm calls by another name."""
LIBRARIES: Mapping[str, tuple[str, str]] = {
    "torch": ("PyTorch: An Imperative Style, High-Performance Deep Learning Library", "1912.01703"),
    "transformers": (
        "HuggingFace's Transformers: State-of-the-art Natural Language Processing",
        "1910.03771",
    ),
    "vllm": (
        "Efficient Memory Management for Large Language Model Serving with PagedAttention",
        "2309.06180",
    ),
}
"""Library -> title and arXiv number of the paper that its authors ask to be cited."""


def bibtex_authors(number: str) -> str:
    """The authors of a paper as BibTeX separates them; empty where they are not known."""
    return AUTHORS.get(number, "").replace(", ", " and ")
