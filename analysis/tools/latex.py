"""Text for LaTeX."""

from __future__ import annotations

from grpobench.analysis.tools.visible import visible

TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "−": "$-$",
    "–": "--",
    "→": r"$\to$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "½": r"$\tfrac12$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    **{
        letter: rf"$\{name}$"
        for letter, name in {
            "Σ": "Sigma",
            "Δ": "Delta",
            "α": "alpha",
            "β": "beta",
            "λ": "lambda",
            "π": "pi",
            "ρ": "rho",
            "σ": "sigma",
            "φ": "varphi",
            "χ": "chi",
        }.items()
    },
    **{raised: f"$^{{{plain}}}$" for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n", strict=True)},
}


def escape(text: str) -> str:
    """Text with every character that TeX reads as a command made printable."""
    return "".join(TEX.get(character, character) for character in visible(str(text)))
